"""The API server as the controllers need it: facts read, objects applied, events posted."""

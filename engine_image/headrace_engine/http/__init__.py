"""The server around the routes: listener, keys, limits, errors, health, access log, traces, the admin port."""

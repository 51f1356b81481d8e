"""One InferenceService: from spec to objects to status."""

"""Kopf, the work queue and its workers, the cache: what carries a change to a controller."""

"""Kopf, the work queue and its workers, the cache: everything that carries a change to a controller."""

"""A real engine and Prometheus for the Job."""

from live_engine import engine, model_folder, prometheus_url

__all__ = ["engine", "model_folder", "prometheus_url"]

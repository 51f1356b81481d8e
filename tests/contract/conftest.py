"""What the contract tests of several packages share."""

from live_engine import engine, model_folder, prometheus_url

__all__ = ["engine", "model_folder", "prometheus_url"]

"""Engines that configs are tried on."""

"""What configs are tried on."""

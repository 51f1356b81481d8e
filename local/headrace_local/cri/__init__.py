"""Message classes of the two gRPC interfaces that the embedded node speaks; generated, see README.md."""

"""The embedded cluster: real Kubernetes components on loopback, under a container runtime of our own."""

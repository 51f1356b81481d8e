"""The container runtime of the embedded cluster: CRI v1 over processes of this machine.

It only starts processes in a view of the file system: no image is pulled, and every allowed image name stands for the
machine's own root, seen copy-on-write. Probes, restarts, volumes, logs and status come from the real kubelet.

Unlike a runtime on a real node, it does not enforce memory and CPU limits (no cgroups), pods share the machine's
network, seccomp and AppArmor profiles are not applied, and there is no streaming for exec, attach and port-forward.
Everything else that a pod asks for is done, or refused with a clear message.

A user namespace (`unshare --user --map-root-user`) has only one user: containers run as that user whatever the pod
asks for, and the kubelet cannot set up volumes of pods with `runAsUser` or `fsGroup` (its chown fails). Pods that leave
the user to the image run as usual.
"""

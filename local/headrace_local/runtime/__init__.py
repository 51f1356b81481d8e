"""The container runtime of the embedded cluster: CRI v1 over processes of this machine.

What is ours here is only "start this process in this file view": no image is pulled, the image of every allowed name
is the machine's own root, seen copy-on-write. Probes, restarts, volumes, logs, status are the real kubelet's.

What a runtime on a real node does and this one does not: memory and CPU limits are not enforced (no cgroups), pods
share the machine's network, seccomp and AppArmor profiles are not applied, there is no exec/attach/port-forward
streaming. Everything else that a pod asks for is done or refused with a clear message.

In a user namespace (`unshare --user --map-root-user`) there is one user only: containers run as it whatever the pod
asks for, and the kubelet cannot set up volumes of pods with `runAsUser` or `fsGroup` (its chown fails). Pods that leave
the user to the image run there as everywhere.
"""

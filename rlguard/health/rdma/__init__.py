"""What is wrong with the machine's RDMA ports: a snapshot of sysfs, what was learned before, and time. Pure."""

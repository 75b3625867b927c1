"""What would break a first job, found before it: the machine, and the user's own Megatron."""

daemon

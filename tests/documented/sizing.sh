truncate -s 1G /dev/nvme0n1

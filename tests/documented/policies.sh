trace vm1.hvt 20k 10
trace vm2.hvt 20k 10
small_mixes
for name in build desktop files mail oltp scanner; do trace $name.csv.zst 2k; done

trace cloudphysics_w106.csv.zst 20k
trace msr_hm_0.csv.zst 20k
trace cloudphysics_vscsi.csv.zst 20k 10

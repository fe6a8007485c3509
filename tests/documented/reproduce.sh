# The sixteen traces of Microsoft Research Cambridge that the paper uses, with a few requests of their format.
mkdir ~/msr-cambridge
for name in wdev_0 web_1 stg_1 ts_0 hm_0 mds_0 proj_0 prxy_0 rsrch_0 src1_2 prn_1 src2_0 web_0 usr_0 rsrch_2 mds_1; do
    awk -v host="${name%_*}" -v disk="${name#*_}" 'BEGIN { for (i = 0; i < 2000; i++)
        printf "%.0f,%s,%s,%s,%d,4096,5000\n", 128166372000000000 + i * 1e6, host, disk, i % 3 ? "Read" : "Write", i * i % 500 * 4096 }' \
        >~/msr-cambridge/$name.csv
done

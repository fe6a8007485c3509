mkdir raw
printf '%s\n' timestamp_ns,volume,op,offset_bytes,length_bytes 1000,a,R,0,4096 2000,a,R,4096 3000,a,W,8192,4096 >damaged.csv
for name in oltp mail files; do trace $name.csv.zst 50k 50; done
trace mail.hvt 200k 20
# Microsoft's format, and the first one of vSCSI (command 0x28 reads).
for n in $(seq 100); do
    echo "1281663720000$((n + 10000)),hm,0,Write,$((n * 4096)),4096,5000"
done | zstd -q -o raw/msr_hm_0_native_1k.orig.zst
records '<IIIHHQQ' 'n, 4096, 1, 0x28, 0x100, n * n % 4000 * 8, n * 10**4' | zstd -q -o raw/cloudphysics_vscsi_114k.orig.zst

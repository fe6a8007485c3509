trace mail.csv.zst 400k 1000
trace desktop.csv.zst 200k

module rlguard.io/lab/pause

go 1.21

# shellcheck shell=bash
# Sourced by the scripts beside it, which set `steps`: the small run that is disturbed, and what it
# came to.

# write_run SAVE_EVERY MICROBATCH [LAYERS]: run.toml and corpus.txt in the working directory.
write_run() {
  local -i i
  for ((i = 0; i < 400; ++i)); do
    echo "line $i tells the story of number $((i * 7919 % 1000)) and its $((i % 17)) friends"
  done >corpus.txt
  cat >run.toml <<TOML
run.threads = 1
model = {dim = 32, layers = ${3:-1}, heads = 4, kv_heads = 2, ffn = 64, vocab = 300}
data = {files = ["corpus.txt"], sequence_length = 32}
tokenizer = {path = "tokenizer.json", train_vocab = 300}
train = {steps = $steps, global_batch = 4, microbatch = $2}
schedule.warmup = 1
checkpoint = {every = $1, keep = 2, async = false}
TOML
}

# What each step computed, without what differs from run to run.
numbers() { # RUN
  sed -E 's/,"(step_seconds|tokens_per_second|memory_bytes)":[^,}]*|,"comm_bytes":\{[^}]*\}//g' "$1/metrics.jsonl"
}

weights() { # RUN
  (cd "$1/checkpoints/$(printf 'step-%08d' "$steps")" && cksum -- *.safetensors)
}

# Whether two runs are the same, bit by bit.
expect_same() { # RUN EXPECTED
  [[ $(numbers "$1" | wc -l) == "$steps" ]] || echo "$1 has $(numbers "$1" | wc -l) lines of metrics"
  diff <(numbers "$1") <(numbers "$2") && diff <(weights "$1") <(weights "$2")
}

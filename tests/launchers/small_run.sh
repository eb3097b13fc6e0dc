# A training run of two ranks that takes seconds: source it with $work set. Writes $work/run.toml.
small_run() {  # STEPS
  local i
  export XDG_CACHE_HOME=$work/home  # remembered measurements of this machine may choose other algorithms, and so other bits
  for ((i = 0; i < 400; i++)); do printf 'The quick brown fox number %d jumps over the lazy dog.\n\n' $i; done >"$work/text.txt"
  cat >"$work/run.toml" <<EOF
[model]
family = "gpt2"
layers = 2
heads = 2
width = 64
context = 32
[data]
text = "$work/text.txt"
cache = "$work/cache"
vocab_size = 300
[train]
steps = $1
batch = 4
threads = 1
log_every = 1
[parallel]
dp = 2
EOF
}
skip() {
  echo "SKIPPED: $*" >&2
  exit 77
}
fail() {
  echo "FAILED: $*" >&2
  tail -n 40 "$work"/*.log >&2
  exit 1
}
comes_true() {  # COMMAND..., for up to WITHIN (120) seconds
  local i
  for ((i = 0; i < 5 * ${WITHIN:-120}; i++)); do "$@" && return 0; sleep 0.2; done
  return 1
}

#!/usr/bin/env bash
# train.sh HPCDL: the batch script of `hpcdl slurm` on a real Slurm. A run of two ranks is pre-empted by a job of higher priority, saves, is
# requeued, resumes and finishes, with the weights of an undisturbed run, bit for bit. Ends with 77 if there is no Slurm.
set -uo pipefail
hpcdl=$(realpath "$1")
. "$(dirname "$0")/cluster.sh"

work=$(mktemp -d)
. "$(dirname "$0")/../launchers/small_run.sh"
finish() {
  cluster_down
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' TERM INT
missing=$(cluster_missing)
[[ -z $missing ]] || skip "no Slurm can be started here: $missing"

small_run "${STEPS:-12000}"
sed -i "1i output = \"$work/run\"" "$work/run.toml"
"$hpcdl" launch -n 2 -- train -c "$work/run.toml" --out "$work/undisturbed" >"$work/undisturbed.log" 2>&1 || fail "the run without Slurm"

cluster_up || fail "Slurm does not start"
"$hpcdl" slurm -c "$work/run.toml" --time 00:10:00 --program "$hpcdl" --log "$work/job.log" >"$work/job.sh" || fail "hpcdl slurm"
grep -q -- '--nodes=1 --ntasks-per-node=2' "$work/job.sh" || fail "the numbers in the script"
job=$(sbatch --parsable "$work/job.sh") || fail "sbatch"

trains() { [[ -f $work/run/metrics.jsonl ]] && (($(wc -l <"$work/run/metrics.jsonl") >= 20)); }
comes_true trains || fail "the job does not train"
sbatch --parsable --partition=urgent --ntasks=2 --time=00:01:00 --output=/dev/null --wrap='sleep 0.5' >/dev/null || fail "sbatch of the urgent job"
saved() { grep -q 'asked to stop: saved step' "$work/job.log"; }
comes_true saved || fail "nothing was saved"
at=$(sed -n 's/.*asked to stop: saved step \([0-9]*\).*/\1/p' "$work/job.log" | head -n 1)
over() { [[ -z $(squeue -h -j "$job" 2>/dev/null) ]]; }
WITHIN=300 comes_true over || fail "the job does not end: $(squeue -h -o '%i %t %r')"

grep -q 'Exited with exit code 75' "$work/job.log" || fail "the ranks did not end with 75"
grep -q 'start 2 of this Slurm job' "$work/job.log" || fail "it was not requeued"
grep -q "resumed at step $at" "$work/job.log" || fail "it did not go on from step $at"
[[ -f $work/run/model/model.safetensors ]] || fail "no model"
[[ $(scontrol show job "$job" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p') == COMPLETED ]] || fail "$(scontrol show job "$job")"
cmp "$work/run/model/model.safetensors" "$work/undisturbed/model/model.safetensors" || fail "other weights than those of the undisturbed run"
echo "pre-empted at step $at, requeued, resumed, finished: same weights"

#!/usr/bin/env bash
# ssh.sh HPCDL: `hpcdl launch --hosts` with a real sshd. This host plays two, as 127.0.0.1 and as localhost: ranks train as without ssh; SIGTERM saves on both; a cut
# connection, an unknown key and a missing program are reported.
set -uo pipefail
hpcdl=$(realpath "$1")
work=$(mktemp -d)
sshd=
end() {
  [[ -n $sshd ]] && kill "$sshd" 2>/dev/null && wait "$sshd" 2>/dev/null
  [[ -n ${made:-} ]] && rmdir /run/sshd 2>/dev/null
  rm -rf "$work"
}
trap end EXIT
trap 'exit 143' TERM INT
. "$(dirname "$0")/small_run.sh"

server=$(PATH=$PATH:/usr/sbin:/usr/local/sbin type -p sshd) || skip "there is no sshd (openssh-server)"
type -p ssh ssh-keygen >/dev/null || skip "there is no ssh (openssh-client)"
# sshd needs this folder, which its service makes.
((EUID)) || [[ -d /run/sshd ]] || { mkdir -m 0755 /run/sshd && made=1 || skip "there is no folder /run/sshd"; }
for key in host user stranger; do ssh-keygen -q -t ed25519 -N '' -f "$work/$key" || fail "no key"; done
for ((i = 0; i < 20; i++)); do
  port=$((20000 + RANDOM % 20000))
  printf '%s\n' "Port $port" "ListenAddress 127.0.0.1" "HostKey $work/host" "PidFile none" "AuthorizedKeysFile $work/user.pub" "StrictModes no" "UsePAM no" "PasswordAuthentication no" \
    "MaxStartups 100" >"$work/sshd_config"
  "$server" -D -e -f "$work/sshd_config" 2>"$work/sshd.log" &
  sshd=$!
  comes_true grep -qE 'listening on|in use|rror' "$work/sshd.log"
  grep -q 'listening on' "$work/sshd.log" && break
  wait "$sshd"
  sshd=
done
[[ -n $sshd ]] || skip "sshd does not start: $(tail -n 1 "$work/sshd.log")"
common=(-F none -p "$port" -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile="$work/known" -o LogLevel=ERROR)
with="ssh ${common[*]} -i $work/user"
$with 127.0.0.1 true 2>"$work/first.log" || skip "sshd lets nobody in: $(cat "$work/first.log" "$work/sshd.log" | tail -n 2)"

over_ssh() { exec "$hpcdl" launch --hosts 127.0.0.1,localhost --ssh "$with" -n 1 -- train -c "$work/run.toml" "$@"; }
small_run 5
"$hpcdl" launch -n 2 -- train -c "$work/run.toml" --out "$work/here" >"$work/here.log" 2>&1 || fail "two ranks without ssh"
(over_ssh --out "$work/run") >"$work/run.log" 2>&1 || fail "two hosts"
grep -q '^\[rank 0\] ' "$work/run.log" || fail "rank 0 says nothing"
cmp "$work/here/model/model.safetensors" "$work/run/model/model.safetensors" || fail "the model is another one"

sed -i 's/^steps = .*/steps = 100000/' "$work/run.toml"
over_ssh --out "$work/long" >"$work/long.log" 2>&1 &
launch=$!
comes_true grep -q 'step *[1-9]' "$work/long.log" || fail "no step"
kill -TERM $launch
wait $launch
(($? == 75)) || fail "SIGTERM does not save"
find "$work/long" -name '*.safetensors' | grep -q . || fail "nothing was saved"

over_ssh --out "$work/cut" >"$work/cut.log" 2>&1 &
launch=$!
comes_true grep -q 'step *[1-9]' "$work/cut.log" || fail "no step"
kill -KILL "$(pgrep -P $launch -f localhost)"
wait $launch
code=$?
((code == 71)) || fail "the code of a cut connection is $code"
grep -q 'host localhost was lost, with rank 1' "$work/cut.log" || fail "the lost host is not named"
all_gone() { ! pgrep -f -- "--out $work/" >/dev/null; }
comes_true all_gone || fail "ranks were left behind"

"$hpcdl" launch --hosts 127.0.0.1,localhost --ssh "ssh ${common[*]} -i $work/stranger" -n 1 -- version >"$work/key.log" 2>&1 && fail "a strange key was let in"
# Both hosts refuse at the same moment; the first refusal that arrives is reported.
grep -qE 'host (127\.0\.0\.1|localhost): .*Permission denied' "$work/key.log" || fail "the refusal is not told"
"$hpcdl" launch --hosts 127.0.0.1 --ssh "$with" --there "$work/none" -n 1 -- version >"$work/none.log" 2>&1 && fail "it ran a missing program"
grep -q "cannot run $work/none" "$work/none.log" || fail "the missing program is not named"
echo "two hosts trained over ssh"

# How the demo speaks, measures and waits. Sourced by demo.sh.

if [[ -t 1 ]]; then
  bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
else
  bold='' green='' red='' plain=''
fi

current_step=''
current_number=0
summary=()

now() { date +%s%N; }

# seconds SINCE: the time since then, as "12.3 s".
seconds() {
  local tenths=$((($(now) - $1) / 100000000))
  echo "$((tenths / 10)).$((tenths % 10)) s"
}

say() { echo "    $*"; }
indent() { sed 's/^/    | /'; }

# show COMMAND...: says what is run, runs it, and shows what it prints.
show() {
  say "$ $*"
  "$@" 2>&1 | indent
}

# step TITLE FUNCTION [ARG...]: announces and runs one step. A failure ends the program; the EXIT trap tells of it.
step() {
  local title=$1 started
  shift
  current_step=$title
  current_number=$((current_number + 1))
  echo
  echo "${bold}[$current_number] $title${plain}"
  started=$(now)
  "$@"
  summary+=("$(printf '%-72s %9s' "$title" "$(seconds "$started")")")
  say "${green}done${plain} in $(seconds "$started")"
  current_step=''
}

# left_out TITLE WHY: tells of a step that this cluster or this way of calling does without.
left_out() {
  current_number=$((current_number + 1))
  echo
  echo "${bold}[$current_number] $1${plain}"
  say "left out: $2"
  summary+=("$(printf '%-72s %9s' "$1" 'left out')")
}

die() {
  echo "${red}$*${plain}" >&2
  exit 1
}

# wait_until WHAT LIMIT COMMAND...: repeats the command twice a second until it succeeds, and says so every ten seconds.
wait_until() {
  local what=$1 limit=$2 started=$SECONDS told=$SECONDS
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS - started >= limit)); then
      die "waited $limit s in vain: $what"
    fi
    if ((SECONDS - told >= 10)); then
      told=$SECONDS
      say "waiting for $what ($((SECONDS - started)) s of at most $limit s)"
    fi
    sleep 0.5
  done
}

# with_progress WHAT COMMAND...: runs a long command with its output in a log, and says every 30 s how far it is.
with_progress() {
  local what=$1 started=$SECONDS log=$scratch/long.log pid
  shift
  "$@" >"$log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    if (((SECONDS - started) % 30 == 29)); then
      say "$what: $((SECONDS - started + 1)) s, $(tail -n 1 "$log" | tr -d '\r' | cut -c1-90)"
    fi
  done
  if ! wait "$pid"; then
    tail -n 30 "$log" | indent
    die "$what failed"
  fi
}

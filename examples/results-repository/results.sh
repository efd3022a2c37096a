#!/usr/bin/env bash
# Steps of a repository of results, called by its workflows and from a shell.
#
#   ./results.sh check BASE   the bundles that this branch adds to BASE: import them, run a sample again, compare the board with
#                             that of BASE; writes work/comment.md. Exit status 1 where a bundle is refused or not reproduced
#   ./results.sh site         the board of all bundles as a site in work/site
#   ./results.sh push SITE    that folder on the branch gh-pages of the remote `origin`; runs git alone
#
# SAMPLE: share of the runs of every row that is run again, 0 for none. Files with other names than PATTERN are no bundles.
set -euo pipefail
cd "$(dirname "$0")"
share=${SAMPLE:-0.1} work=work comment=work/comment.md
PATTERN='bundles/[A-Za-z0-9][A-Za-z0-9._-]*\.zip'
[ "${1:-}" = push ] || rm -rf "$work"
mkdir -p "$work/new"

bundles() { # those among the names that are read, each ended by a NUL
  LC_ALL=C grep -zxE "$PATTERN" || [ $? = 1 ]
}

changed() { # names of files that differ from the base $1, with more arguments of git diff
  git diff -z --name-only --no-renames "$1...HEAD" "${@:2}"
}

step() { # a command in the comment, with its output as an indented block, which no text can end
  printf '\n`%s`\n\n' "$*" >> "$comment"
  "$@" 2>&1 | sed 's/^/    /' | tee -a "$comment"
}

again() {
  [ "$share" = 0 ] || step fedbench reproduce "$1" --sample "$share"
}

check() {
  local base=$1 status=0 sources=() new old other bundle folder
  mapfile -d '' -t new < <(changed "$base" --diff-filter=A | bundles)
  mapfile -d '' -t old < <(git ls-tree -r -z --name-only "$(git merge-base "$base" HEAD)" | bundles)
  mapfile -d '' -t other < <(changed "$base" -- . "${new[@]/#/:(exclude,literal)}")
  if [ ${#other[@]} -gt 0 ]; then
    printf 'Read these changes, which are not new bundles:\n\n' >> "$comment"
    printf '    %q\n' "${other[@]}" | tee -a "$comment"
  fi
  for bundle in "${new[@]}"; do
    folder=$work/new/$(basename "$bundle" .zip)
    step fedbench import "$bundle" -o "$folder" || { status=1 && continue; }
    again "$folder" || status=1
    sources+=("$folder")
  done
  [ ${#sources[@]} -gt 0 ] || { printf '\nNo new bundle was taken.\n' | tee -a "$comment"; return 1; }
  fedbench merge "${old[@]}" "${sources[@]}" -o "$work/results"
  step fedbench leaderboard "$work/results" --no-plots
  if [ ${#old[@]} -gt 0 ]; then
    fedbench merge "${old[@]}" -o "$work/before"
    fedbench baseline "$work/before" -o "$work/before.json"
    fedbench compare "$work/results" "$work/before.json" --fail-on nothing --output "$work/compare.md"
    cat "$work/compare.md" >> "$comment"
  fi
  return $status
}

site() {
  local all
  mapfile -d '' -t all < <(git ls-tree -r -z --name-only HEAD | bundles)
  [ ${#all[@]} -gt 0 ] || { echo "no bundle yet" && return; }
  fedbench merge "${all[@]}" -o "$work/results"
  again "$work/results" || [ $? = 1 ] # a row that is not reproduced is shown without a rank
  fedbench leaderboard "$work/results" --html "$work/site"
}

push() {
  local site=$1 commit
  touch "$site/.nojekyll"
  export GIT_INDEX_FILE=$PWD/$work/index
  git --work-tree="$site" add --all --force .
  commit=$(git -c user.name=results -c user.email=results@localhost commit-tree "$(git write-tree)" -m "Site of $(git rev-parse HEAD)")
  git push --force origin "$commit:refs/heads/gh-pages"
}

"$@"

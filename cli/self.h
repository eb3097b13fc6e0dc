#pragma once
// This program, seen from outside.

#include <string>
#include <vector>

namespace hpcdl::cli {

/// Runs this program again with other words and returns what it printed on stdout: a process of its own has a memory
/// peak of its own. Throws Error when it does not end with 0.
std::string run_self(const std::vector<std::string>& words);

/// What was typed to start it, to be typed again.
std::string own_command();

/// SIGINT, SIGTERM and SIGHUP end the process by that signal, as they do by default, but what it has begun to write and
/// not finished goes first, and the cursor leaves the line of a progress bar. A mapped file that is cut short ends it
/// with a line that names the file.
void end_cleanly_on_signals();

}  // namespace hpcdl::cli

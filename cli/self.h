#pragma once
// This program as a process: running it again, its command line, its signals.

#include <string>
#include <vector>

namespace hpcdl::cli {

/// Runs this program again with other arguments and returns what it printed on stdout: a separate process has its own
/// memory peak. Throws Error if it does not end with 0.
std::string run_self(const std::vector<std::string>& words);

/// The command line that started it, quoted for a shell.
std::string own_command();

/// SIGINT, SIGTERM and SIGHUP end the process by that signal, as they do by default, but first files that it has begun
/// to write and not finished are removed, and the cursor leaves the line of a progress bar. A mapped file that is
/// cut short ends it with a line that names the file.
void end_cleanly_on_signals();

}  // namespace hpcdl::cli

#pragma once
// What is wrong with the words of a command line, in the words of this program. The parser's own texts never reach a
// user.

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace hpcdl::cli {

/// A line for standard error, with its line feed: what is wrong, and which --help has the answer.
std::string complaint(const CLI::App& program, const CLI::Error& error);

/// `what` followed by where to read more: "; see hpcdl train --help".
std::string with_help(std::string_view what, std::string_view verb);

/// "unknown option --modle; did you mean --model?"
std::string unknown_option_text(const std::string& name, const std::vector<std::string>& known);

}  // namespace hpcdl::cli

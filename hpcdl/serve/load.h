#pragma once
// Load for a server: requests that arrive at random, as those of many independent clients do.

#include <cstdint>
#include <string>
#include <vector>

namespace hpcdl::serve {

struct LoadOptions {
  std::string host = "127.0.0.1", key;
  int port = 8080;
  double rate = 1;  // requests a second, on average; 0: all of them at once
  std::int64_t requests = 1;
  std::int64_t input = 512, output = 512;  // tokens of a prompt, and new ones
  std::int64_t vocab = 256;                // prompts are random ids below it
  std::uint64_t seed = 1;
  double timeout = 600;  // seconds for one request
};

/// What one client saw. Times are in seconds.
struct Seen {
  std::string error;  // empty: it has the whole text
  double first = 0, whole = 0;
  std::vector<double> gaps;  // between parts of the text; a part is one token, or more where they form one character
  std::int64_t tokens = 0;
};

/// Sends the requests to /v1/completions of a server, each on a connection of its own, and waits for all. Throws Error
/// if the address is wrong.
std::vector<Seen> run_load(const LoadOptions& options);

/// "http://HOST:PORT". Throws UsageError for anything else.
void read_url(const std::string& url, LoadOptions& to);

}  // namespace hpcdl::serve

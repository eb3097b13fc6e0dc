#pragma once
// Other libraries that compute a case on the same memory in the same process. They are loaded at run time, run with
// the same number of threads, and are told the features of the CPU if they do not know them.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/lab/compare/product.h"

namespace hpcdl::lab::compare {

/// The function by which a peer computes one case, or why it has none.
struct Offer {
  std::function<void()> call;
  std::shared_ptr<Buffer> result;  // what `call` writes: the output in f32
  std::string missing;             // why there is no call
};

struct Peer {
  std::string name;
  std::string version, file;  // of the library that runs
  std::string missing;        // why the library cannot be used; empty: it can
  std::function<Offer(const CaseRun&)> offer;
};

/// The peers that only need a shared library: "onednn", "openblas".
const std::vector<std::string>& library_peers();
/// Loads it, after setting the environment variables that make it fast on this CPU.
Peer library_peer(const std::string& name, int threads);

/// The largest difference between the output of our kernel and of the peer's, relative to the largest value.
double difference(const Product& ours, const Buffer& theirs);
/// The difference that rounding explains: both sum k products in f32, in different orders.
double rounding(const Product& p);

}  // namespace hpcdl::lab::compare

#pragma once
// Other libraries that compute a case on the same memory in the same process. They are looked for at run time, run with
// as many threads as we do, and are told what the CPU can do where they do not know it.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/lab/compare/product.h"

namespace hpcdl::lab::compare {

/// A peer's way of computing one case, or why it has none.
struct Offer {
  std::function<void()> call;
  std::shared_ptr<Buffer> result;  // what `call` writes: the output in f32
  std::string missing;             // why there is no call
};

struct Peer {
  std::string name;
  std::string version, file;  // of the library that runs
  std::string missing;        // why there is no such library here; empty: there is
  std::function<Offer(const CaseRun&)> offer;
};

/// The peers that need nothing but a shared library: "onednn", "openblas".
const std::vector<std::string>& library_peers();
/// Loads it, after setting the environment variables that make it fast on this CPU.
Peer library_peer(const std::string& name, int threads);

/// The largest difference between the output of our kernel and of the peer's, relative to the largest value.
double difference(const Product& ours, const Buffer& theirs);
/// What rounding explains of it: both sum k products in f32, in different orders.
double rounding(const Product& p);

}  // namespace hpcdl::lab::compare

#pragma once
// Other libraries that compute a case on the same memory in the same process. They are loaded at run time, run with
// the same number of threads, and are told the features of the CPU if they do not know them.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/cases.h"

namespace hpcdl::lab::compare {

/// A case that is one bare matrix product: D (m, n) = op(A) op(B), all row-major and dense, on the memory of its run.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType dtype = DType::f32;
  const void *a = nullptr, *b = nullptr;
  const void* d = nullptr;  // the output of our kernel

  std::int64_t lda() const { return transpose_a ? m : k; }
  std::int64_t ldb() const { return transpose_b ? k : n; }
};

/// Nothing if the case does more than that: a bias, an activation, a batch, a backward pass.
std::optional<Product> product_of(const CaseRun& run);

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

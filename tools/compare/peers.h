#pragma once
// Other libraries that compute a case in the same process. Those of CPUs compute on the same memory; they are loaded at
// run time, run with the same number of threads, and are told the features of the CPU if they do not know them. Those
// of GPUs are the ones that our ops can choose.

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
  std::shared_ptr<Buffer> result;  // what `call` writes: the output in f32; null: it is not compared with ours
  std::string missing;             // why there is no call
};

struct Peer {
  std::string name;
  std::string version, file;  // of the library that runs
  std::string missing;        // why the library cannot be used; empty: it can
  std::function<Offer(const Case&, const CaseRun&)> offer;
};

/// The peers that only need a shared library: "onednn", "openblas".
const std::vector<std::string>& library_peers();
/// Loads it, after setting the environment variables that make it fast on this CPU.
Peer library_peer(const std::string& name, int threads);

/// The peers that ops on a GPU can choose: "cublaslt", "cudnn".
const std::vector<std::string>& gpu_library_peers();
/// Computes a case as we do, but whatever the library can compute by the library. A product by 4-bit weights becomes one
/// by weights in the type of x.
Peer gpu_library_peer(const std::string& name, const Stream& stream);

/// The largest difference between the output of our kernel and of the peer's, relative to the largest value.
double difference(const Product& ours, const Buffer& theirs);
/// The difference that rounding explains: both sum k products in f32, in different orders.
double rounding(const Product& p);

}  // namespace hpcdl::lab::compare

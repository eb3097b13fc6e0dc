#pragma once
// Chooses the algorithm for a call.

#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/group.h"

namespace hpcdl::comm {
class Group;
}

namespace hpcdl::comm::algo {

/// What the choice depends on.
struct Situation {
  Collective what = Collective::all_reduce;
  std::int64_t bytes = 0;  // of the whole tensor
  int ranks = 2;
  int hosts = 1;
  bool shared = true;   // ranks of one host have shared memory
  bool window = false;  // the tensors lie in it
  int on_host = 0;      // ranks of the host that has the most; 0: every host has the same number
  bool gpus = false;    // tensors lie on GPUs; `shared` then: our kernels can do it, over NVLink between all pairs
};

/// All algorithms that have this collective, in the order of Algorithm.
std::vector<Algorithm> algorithms_of(Collective what);
/// Those of them that can be used in this situation. native: the transport has its own library.
std::vector<Algorithm> possible(const Situation& s, bool native);

/// Whether with this algorithm the bits of an element are independent of its position in the tensor, and so of where
/// tensors are cut into buckets. Only another order of rounding could make a difference; two ranks have one
/// order.
bool position_independent(Algorithm a, int ranks);

/// The choice if nothing was measured. Never automatic. From runs of 2 ranks of one host and of 2 hosts of 2 ranks. On
/// GPUs it is the only one, so that the bits of a run do not depend on timing.
Algorithm default_choice(const Situation& s);

/// The fastest algorithms on a machine; `hpcdl bench comm --save` writes them.
struct Policy {
  struct Row {
    Collective what = Collective::all_reduce;
    int ranks = 2, hosts = 1;
    bool window = false;
    std::int64_t bytes = 0;  // up to which it holds; the longest row of a situation also holds for longer tensors
    Algorithm algorithm = Algorithm::ring;
    bool operator==(const Row&) const = default;
  };
  std::vector<Row> rows;

  /// The measured choice if it is possible in this situation, otherwise the default.
  Algorithm choose(const Situation& s) const;
  /// Replaces all rows of its situation.
  void replace(const std::vector<Row>& of_one_situation);
  /// One row per line.
  std::string text() const;
  /// Ignores unknown lines.
  static Policy parse(const std::string& text);
  /// Empty if the file does not exist.
  static Policy read(const std::filesystem::path& file);
};

/// Collective: all ranks of this world, and the groups split from it, choose by the table of rank 0. Ranks that chose
/// by their own files could choose different algorithms.
void adopt(const Group& world, const Policy& mine);

}  // namespace hpcdl::comm::algo

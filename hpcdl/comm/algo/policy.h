#pragma once
// Which algorithm for which call.

#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/comm/reduce.h"

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
  int on_host = 0;      // ranks of the host that has most of them; 0: every host has as many
};

/// All that do this collective, in the order of Algorithm.
std::vector<Algorithm> algorithms_of(Collective what);
/// Those of them that can be used there. native: the transport has a library of its own.
std::vector<Algorithm> possible(const Situation& s, bool native);

/// Whether with this algorithm an element's bits are independent of where it stands in the tensor, and so of where
/// tensors are cut into buckets. Rounding in another order is all that could make a difference; two ranks have one
/// order.
bool position_independent(Algorithm a, int ranks);

/// Where nothing was measured. Never automatic. From runs of 2 ranks of one host and of 2 hosts of 2 ranks.
Algorithm default_choice(const Situation& s);

/// What was fastest on a machine; `hpcdl bench comm --save` writes it.
struct Policy {
  struct Row {
    Collective what = Collective::all_reduce;
    int ranks = 2, hosts = 1;
    bool window = false;
    std::int64_t bytes = 0;  // up to which it holds; the longest row of a situation holds for all that is longer
    Algorithm algorithm = Algorithm::ring;
    bool operator==(const Row&) const = default;
  };
  std::vector<Row> rows;

  /// What was measured and is possible there, else the default.
  Algorithm choose(const Situation& s) const;
  /// Takes the place of all rows of its situation.
  void replace(const std::vector<Row>& of_one_situation);
  /// One row in a line.
  std::string text() const;
  /// Lines that say nothing known are left out.
  static Policy parse(const std::string& text);
  /// Empty where there is no such file.
  static Policy read(const std::filesystem::path& file);
};

/// Collective: all ranks of this world, and the groups split from it, choose by what rank 0 has. Ranks that chose by
/// files of their own would not meet.
void adopt(const Group& world, const Policy& mine);

}  // namespace hpcdl::comm::algo

#pragma once
// For verbs that may run on many ranks.

#include <exception>
#include <string>
#include <vector>

#include "hpcdl/comm/bootstrap/join.h"
#include "hpcdl/parallel/agreement.h"
#include "hpcdl/train/config.h"

namespace hpcdl::cli {

/// The ranks of the launch that a launcher or [dist] describes. Rank 0 prints which. A rank that knows that
/// another is lost, but cannot end by itself, is ended with code 71. `parallel`: a mesh that does not fit the world is
/// refused before ranks meet, MPI starts and the rest.
comm::Joined join_ranks(const train::DistConfig& config, const train::ParallelConfig* parallel = nullptr);

/// What every verb that runs on several ranks compares: the program, its commit and the verb.
std::vector<parallel::Fact> program_facts(const std::string& verb);
/// Collective over the ranks of the launch. Throws parallel::Disagreement unless they have the same program_facts(),
/// the same instruction set and the same `options`.
void expect_same_start(const comm::Joined& ranks, const std::string& verb, const std::vector<parallel::Fact>& options);

/// With "cuda" and many ranks: the GPU of this rank.
std::string device_of_rank(const std::string& device, const comm::Place& place);

/// Every rank has thrown the same error: they end together, and none reports another as lost.
void close_after_disagreement(comm::Joined& joined);

/// f(), which does the work of the verb on this rank and returns its exit code. If it throws, the others are told, and
/// all end together.
template <class F> int on_ranks(comm::Joined& joined, F&& f) {
  try {
    const int code = f();
    joined.close();
    return code;
  } catch (const comm::PeerLost&) {
    throw;
  } catch (const parallel::Disagreement&) {
    close_after_disagreement(joined);
    throw;
  } catch (const std::exception& e) {
    joined.fail(e.what());
    throw;
  }
}

}  // namespace hpcdl::cli

#pragma once
// Verbs that may run on many ranks.

#include "hpcdl/comm/bootstrap/join.h"
#include "hpcdl/train/config.h"

namespace hpcdl::cli {

/// The ranks that a launcher, or [dist], makes this process one of. Rank 0 says who told. A rank that knows that
/// another is lost, but cannot end by itself, is ended with code 71. `parallel`: a mesh that is not the world is
/// refused before ranks meet, MPI starts and the rest.
comm::Joined join_ranks(const train::DistConfig& config, const train::ParallelConfig* parallel = nullptr);

/// "cuda" of many ranks: the GPU of this one.
std::string device_of_rank(const std::string& device, const comm::Place& place);

/// f(), which does the verb on this rank and returns its exit code. The others hear of what it throws, and all leave
/// together.
template <class F> int on_ranks(comm::Joined& joined, F&& f) {
  try {
    const int code = f();
    joined.close();
    return code;
  } catch (const comm::PeerLost&) {
    throw;
  } catch (const std::exception& e) {
    joined.fail(e.what());
    throw;
  }
}

}  // namespace hpcdl::cli

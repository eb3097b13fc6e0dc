#include "hpcdl/io/ranks.h"

#include <exception>

#include "hpcdl/comm/transport.h"
#include "hpcdl/core/error.h"

namespace hpcdl::io {

void agree(Ranks& ranks, const std::function<void()>& part) {
  std::string what;
  std::exception_ptr mine;
  try {
    part();
  } catch (const comm::PeerLost&) {
    throw;
  } catch (const std::exception& e) {
    mine = std::current_exception();
    what = e.what();
  }
  const auto all = ranks.gather(what);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    if (static_cast<int>(r) == ranks.rank()) std::rethrow_exception(mine);
    throw Error(fmt::format("{} (rank {})", all[r], r));
  }
}

}  // namespace hpcdl::io

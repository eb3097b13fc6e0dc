#include "hpcdl/parallel/axis.h"

#include <utility>

#include "hpcdl/comm/ledger.h"

namespace hpcdl::parallel {

void GroupAxis::all_reduce(Stream& s, const Tensor& x, bool maximum, std::string_view tensor) const {
  const comm::Label label(tensor);
  group_.all_reduce(s, x, maximum ? comm::Reduce::max : comm::Reduce::sum, algorithm_).wait();
}
void GroupAxis::reduce_scatter(Stream& s, const Tensor& mine, const View& all, std::string_view tensor) const {
  const comm::Label label(tensor);
  group_.reduce_scatter(s, mine, all, comm::Reduce::sum, algorithm_).wait();
}
void GroupAxis::all_gather(Stream& s, const Tensor& all, const View& mine, std::string_view tensor) const {
  const comm::Label label(tensor);
  group_.all_gather(s, all, mine, algorithm_).wait();
}
void GroupAxis::all_to_all(Stream& s, const Tensor& theirs, const View& mine, std::string_view tensor) const {
  const comm::Label label(tensor);
  group_.all_to_all(s, theirs, mine).wait();
}
Ticket GroupAxis::rotate(Stream& s, const Tensor& theirs, const View& mine, int distance,
                         std::string_view tensor) const {
  const int ranks = group_.size(), at = group_.rank(), to = (at + distance) % ranks,
            from = (at + ranks - distance) % ranks;
  const comm::Label label(tensor);
  if (s.device().is_cuda()) {
    // A stream waits in its send until the other rank receives, so not all ranks may begin with it.
    const auto send = [&] { group_.send(s, mine, to); };
    if (at % 2 == 0) send();
    group_.receive(s, theirs, from);
    if (at % 2 != 0) send();
    return {};
  }
  auto sent = group_.send(s, mine, to);
  auto received = group_.receive(s, theirs, from);
  return Ticket([sent = std::move(sent), received = std::move(received)]() mutable {
    const comm::Work same = received;
    sent.wait(), received.wait();
    const auto [begin, end] = same.took();
    return Ticket::Span{begin, end};
  });
}

}  // namespace hpcdl::parallel

#include "hpcdl/data/images/remember.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::data {

RememberedImages::RememberedImages(std::shared_ptr<const ImageSet> set)
    : ImageSet(set->info()),
      set_(std::move(set)),
      bytes_(static_cast<std::size_t>(info_.height) * static_cast<std::size_t>(info_.width) * 3) {
  require(bytes_ > 0, "data", "the images of {} differ in size: only images of one size can be kept in memory",
          info_.name);
  const auto n = static_cast<std::size_t>(set_->count());
  pixels_ = std::make_unique_for_overwrite<std::uint8_t[]>(n * bytes_);
  states_ = std::make_unique<std::atomic<std::uint8_t>[]>(n);
}

void RememberedImages::decode(std::int64_t i, Picture& to) const {
  require(i >= 0 && i < count(), "data", "image {} of {}", i, count());
  auto& state = states_[static_cast<std::size_t>(i)];
  std::uint8_t* place = pixels_.get() + static_cast<std::size_t>(i) * bytes_;
  if (state.load(std::memory_order_acquire) == kept) {
    to.height = info_.height, to.width = info_.width;
    to.pixels.assign(place, place + bytes_);
    return;
  }
  set_->decode(i, to);
  std::uint8_t was = empty;
  if (!state.compare_exchange_strong(was, being_kept, std::memory_order_relaxed)) return;
  std::copy_n(to.pixels.data(), bytes_, place);
  state.store(kept, std::memory_order_release);
}

void RememberedImages::make(int threads) const {
  std::vector<std::jthread> team;
  for (int t = 0; t < threads; ++t)
    team.emplace_back([this, t, threads] {
      Picture p;
      for (std::int64_t i = t; i < count(); i += threads) decode(i, p);
    });
}

}  // namespace hpcdl::data

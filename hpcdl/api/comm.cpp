#include "hpcdl/comm.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "hpcdl/comm/bootstrap/join.h"
#include "hpcdl/comm/transport/threads.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/parallel/agree.h"

namespace hpcdl::comm {

void run_ranks(int n, const std::function<void(const Group& world)>& f) {
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> ranks;
    for (auto& transport : thread_transports(n))
      ranks.emplace_back([&, own = std::move(transport)]() mutable {
        Group world;
        try {
          world = make_world(std::move(own));
          f(world);
          world.close();
        } catch (const std::exception& e) {
          {
            const std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
          }
          world.abandon(e.what());
        }
      });
  }
  if (first) std::rethrow_exception(first);
}

World::World() : joined_(std::make_unique<Joined>(join(find_place(process_environment()), {}))) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() {
  if (joined_) joined_->fail("its program ended");
}

const Group& World::group() const { return joined_->world(); }

Device World::device() const {
  const int gpus = cuda_devices();
  return gpus == 0 ? Device::cpu() : Device::cuda(device_of(joined_->place(), gpus));
}

void World::close() {
  if (joined_) joined_->close();
}

double sum(const Group& group, double value) { return parallel::sum_over_ranks(group, value); }

}  // namespace hpcdl::comm

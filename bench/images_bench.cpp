// Images per second of one loader worker, by its processing: medians of seven runs, taken in turns. The caller
// makes the batches itself, and only its processor time counts, so that only the work is measured: a worker
// with its own core reaches this rate.

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "bench/emit.h"
#include "hpcdl/data/images/cifar.h"
#include "hpcdl/data/images/image_loader.h"

using namespace hpcdl;
using namespace hpcdl::data;

namespace {

/// The number of images in one file of CIFAR-10, in memory.
std::shared_ptr<const ImageSet> cifar_like() {
  const auto source = open_images("", Split::train, {.procedural_train = 10000, .remember = false});
  CifarPiece piece;
  Picture p;
  for (std::int64_t i = 0; i < source->count(); ++i) {
    source->decode(i, p);
    piece.pixels.insert(piece.pixels.end(), p.pixels.begin(), p.pixels.end());
    piece.targets.push_back(source->target(i));
  }
  std::vector<CifarPiece> pieces;
  pieces.push_back(std::move(piece));
  return std::make_shared<Cifar>(source->info(), std::move(pieces));
}

struct Case {
  const char* name;
  std::shared_ptr<const ImageSet> set;
  AugmentOptions augment;
  std::vector<double> rates = {};
};

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double rate(const Case& c) {
  constexpr int kBatches = 40, kBatch = 128;
  ImageLoader loader(c.set, {.batch = kBatch, .workers = 0, .augment = c.augment});
  loader.next();
  const double begin = processor_seconds();
  for (int b = 0; b < kBatches; ++b) loader.next();
  return kBatches * kBatch / (processor_seconds() - begin);
}

}  // namespace

int main() {
  const auto memory = cifar_like(), drawn = open_images("", Split::train, {.remember = false});
  std::vector<Case> cases = {
      {"in memory: normalise", memory, {}},
      {"in memory: crop, flip, normalise", memory, {.crop = 4, .flip = true}},
      {"in memory: crop, flip, mixup, normalise", memory, {.crop = 4, .flip = true, .mixup = 0.2}},
      {"procedural: crop, flip, normalise", drawn, {.crop = 4, .flip = true}}};
  for (int run = 0; run < 7; ++run)
    for (Case& c : cases) c.rates.push_back(rate(c));
  for (Case& c : cases) {
    std::sort(c.rates.begin(), c.rates.end());
    bench::emit(fmt::format("image loader, one worker, {}", c.name),
                {{"images_per_second", c.rates[3]}, {"lowest", c.rates[0]}, {"highest", c.rates[6]}});
  }
}

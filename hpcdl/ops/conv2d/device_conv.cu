#include "hpcdl/ops/conv2d/device_conv.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "hpcdl/ops/conv2d/cudnn_conv.h"
#include "hpcdl/ops/conv2d/own_conv.h"

namespace hpcdl::cuda {
namespace {

constexpr std::string_view kNames[] = {"own", "cudnn"};

std::atomic<ConvChooser> the_chooser = nullptr;

/// What HPCDL_CONV asks for, or -1.
int asked_for() {
  static const int wish = [] {
    const char* text = std::getenv("HPCDL_CONV");
    if (!text) return -1;
    for (const int id : {kConvOwn, kConvCudnn})
      if (kNames[id] == text) return id;
    std::fprintf(stderr, "[conv2d] HPCDL_CONV=%s is neither own nor cudnn; choosing by shape\n", text);
    return -1;
  }();
  return wish;
}

/// Too little work for a library's launch to pay.
bool tiny(const Conv& c) { return c.shape.flops() < 1 << 27; }

}  // namespace

std::span<const ConvCandidate> conv_candidates(Stream& s, const Conv& c) {
  static constexpr ConvCandidate all[] = {{kConvOwn, kNames[kConvOwn]}, {kConvCudnn, kNames[kConvCudnn]}};
  return std::span(all).first(fits_cudnn(s, c) ? 2 : 1);
}

void conv_with(Stream& s, const Conv& c, int candidate) {
  require(candidate == kConvOwn || candidate == kConvCudnn, "conv2d", "there is no candidate number {}: 0 is own, 1 is cudnn", candidate);
  if (candidate == kConvOwn) own_conv(s, c);
  else run_cudnn(s, c);
}

int conv_choice(Stream& s, const Conv& c) {
  int id = asked_for();
  if (const ConvChooser chooser = the_chooser.load(std::memory_order_relaxed); id < 0 && chooser) id = chooser(s, c);
  if (id < 0) id = tiny(c) ? kConvOwn : kConvCudnn;
  return id == kConvCudnn && fits_cudnn(s, c) ? kConvCudnn : kConvOwn;
}

void set_conv_chooser(ConvChooser chooser) { the_chooser = chooser; }

void conv(Stream& s, const Conv& c) { conv_with(s, c, conv_choice(s, c)); }

}  // namespace hpcdl::cuda

#include "hpcdl/ops/conv2d/padded_channels.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/workspace.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kAligned = 1024, kBytesAtOnce = std::int64_t{24} << 20;  // copies of images that stay in L2

std::int64_t whole(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

/// Copies `rows` rows of `channels` elements to rows of kLanes<T> * `chunks`, padded with zeros, and writes zeros to the
/// rows after them; a thread writes 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads)
    padded(T* to, std::int64_t all_rows, int chunks, const void* from, DType dtype, std::int64_t rows, int channels) {
  constexpr int N = kLanes<T>;
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= all_rows * chunks) return;
  const std::int64_t row = i / chunks;
  const int first = static_cast<int>(i - row * chunks) * N;
  Lanes<N> v(0.0f);
  if (row < rows)
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (first + k < channels) v.v[k] = fetch(from, dtype, row * channels + first + k);
  write_aligned(to + i * N, pack<T>(v));
}

/// to (rows, channels) (+)= the first `channels` elements of rows of `padded_channels`; a thread writes 16 bytes.
template <class T, class From>
__global__ void __launch_bounds__(kThreads)
    without_padding(T* to, std::int64_t size, int channels, const From* from, int padded_channels, bool accumulate) {
  constexpr int N = kLanes<T>;
  const std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= size) return;
  const int count = static_cast<int>(size - i < N ? size - i : N);
  std::int64_t row = i / channels;
  int channel = static_cast<int>(i - row * channels);
  Lanes<N> v(0.0f);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (k < count) v.v[k] = widen(from[row * padded_channels + channel]);
    if (++channel == channels) channel = 0, ++row;
  }
  if (accumulate) v = v + load<N>(to + i, count);
  store(to + i, v, count);
}

struct Rows {
  std::int64_t count, channels;
};

struct Copy {
  void* data = nullptr;
  DType dtype = DType::f32;
  operator ConvOperand() const { return {data, dtype}; }
};

/// Padded rows have a multiple of 16 bytes.
void pad(Stream& s, const Copy& to, const Rows& padded_rows, const ConvOperand& from, const Rows& rows) {
  visit_dtype(to.dtype, [&]<class T>() {
    const std::int64_t chunks = padded_rows.channels / kLanes<T>;
    padded<<<blocks_for(padded_rows.count * chunks, kThreads), kThreads, 0, queue(s)>>>(
        static_cast<T*>(to.data), padded_rows.count, static_cast<int>(chunks), from.data, from.dtype, rows.count,
        static_cast<int>(rows.channels));
  });
  launched("padding of a convolution's channels");
}

void remove_padding(Stream& s, const Copy& to, const Rows& rows, const Copy& from, std::int64_t channels,
                    bool accumulate) {
  visit_dtype(to.dtype, [&]<class T>() {
    const std::int64_t size = rows.count * rows.channels;
    const auto copy_from = [&]<class From>() {
      without_padding<<<blocks_for(size, kThreads * kLanes<T>), kThreads, 0, queue(s)>>>(
          static_cast<T*>(to.data), size, static_cast<int>(rows.channels), static_cast<const From*>(from.data),
          static_cast<int>(channels), accumulate);
    };
    if (from.dtype == DType::f32) copy_from.template operator()<float>();
    else copy_from.template operator()<T>();
  });
  launched("results of a convolution without its padding");
}

/// A run of the workspace.
class Room {
 public:
  explicit Room(void* begin) : next_(static_cast<std::byte*>(begin)) {}
  std::byte* take(std::int64_t bytes) { return std::exchange(next_, next_ + whole(bytes, kAligned)); }

 private:
  std::byte* next_;
};

/// What passes of one convolution need copies of.
struct Copies {
  bool x = false, w = false, dy = false, bias = false;  // operands
  bool y = false, dx = false, dw = false;               // results

  Copies(std::span<const Conv> passes, const Channels& to) {
    for (const Conv& c : passes) {
      const bool inputs = to.inputs != c.shape.i, outputs = to.outputs != c.shape.o;
      x |= c.pass != ConvPass::data && inputs;
      w |= c.pass != ConvPass::weight;
      dy |= c.pass != ConvPass::forward && outputs;
      bias |= c.pass == ConvPass::forward && c.bias.data && outputs;
      y |= c.pass == ConvPass::forward && outputs;
      dx |= c.pass == ConvPass::data && inputs;
      dw |= c.pass == ConvPass::weight;
    }
  }
};

/// Bytes of what all images share, of an image's copies, and the images at a time: batches of equal size, or nearly so;
/// the workspace with room for them.
struct Batches {
  std::int64_t shared = 0, image = 0, images = 0;
  int level = 1;

  Batches(std::span<const Conv> passes, const Channels& to) {
    const Conv& c = passes[0];
    const auto& g = c.shape;
    const Copies copies(passes, to);
    const std::int64_t element = dtype_bytes(c.compute), in = g.h * g.w * to.inputs * element,
                       out = g.oh * g.ow * to.outputs * element, weights = to.outputs * g.taps() * to.inputs;
    if (copies.w) shared += whole(weights * element, kAligned);
    if (copies.dw) shared += whole(weights * 4, kAligned);
    if (copies.bias) shared += whole(to.outputs * 4, kAligned);
    image = (copies.x + copies.dx) * in + (copies.y + copies.dy) * out;
    constexpr std::int64_t kEnds = 4 * kAligned;
    const auto room_of = [&](int l) { return static_cast<std::int64_t>(workspace_bytes(l)) - shared - kEnds; };
    if (room_of(1) < image) level = 2;
    const std::int64_t room = room_of(level);
    const std::int64_t most = image == 0 ? (room >= 0 ? g.n : 0)
                                         : std::max(std::min(room, kBytesAtOnce) / image, std::int64_t{room >= image});
    if (most <= 0 || g.n == 0) return;
    const std::int64_t times = (g.n + most - 1) / most;
    images = (g.n + times - 1) / times;
  }
};

ConvOperand from_element(const ConvOperand& o, std::int64_t element) {
  return {static_cast<const std::byte*>(o.data) + element * dtype_bytes(o.dtype), o.dtype};
}

/// The copies that all batches share.
struct Shared {
  Copy w, bias, dw;
};

/// One batch of one convolution's passes.
class Batch {
 public:
  Batch(Stream& s, std::span<const Conv> passes, const Channels& to, const Shared& shared, Room room,
        std::int64_t first, std::int64_t images)
      : s_(s), passes_(passes), to_(to), shared_(shared), first_(first), images_(images) {
    const Conv& c = passes[0];
    const auto& g = c.shape;
    const Copies copies(passes, to);
    const auto take = [&](std::int64_t pixels, std::int64_t channels) {
      return Copy{room.take(pixels * channels * dtype_bytes(c.compute)), c.compute};
    };
    const std::int64_t in = images * g.h * g.w, out = images * g.oh * g.ow;
    if (copies.x) x_ = take(in, to.inputs);
    if (copies.dx) dx_ = take(in, to.inputs);
    if (copies.y) y_ = take(out, to.outputs);
    if (copies.dy) dy_ = take(out, to.outputs);
  }

  /// Copies the operands; returns the products of the copies.
  std::vector<Conv> operands() {
    std::vector<Conv> products;
    for (const Conv& c : passes_) products.push_back(product(c));
    return products;
  }

  void results() {
    for (const Conv& c : passes_) {
      const auto& g = c.shape;
      const Copy out = result(c);
      if (c.pass == ConvPass::forward && y_.data)
        remove_padding(s_, out, {images_ * g.oh * g.ow, g.o}, y_, to_.outputs, false);
      if (c.pass == ConvPass::data && dx_.data)
        remove_padding(s_, out, {images_ * g.h * g.w, g.i}, dx_, to_.inputs, false);
    }
  }

 private:
  /// Where the batch's part of y or dx lies.
  Copy result(const Conv& c) const {
    const auto& g = c.shape;
    const std::int64_t image = c.pass == ConvPass::forward ? g.oh * g.ow * g.o : g.h * g.w * g.i;
    return {static_cast<std::byte*>(c.out) + first_ * image * dtype_bytes(c.out_dtype), c.out_dtype};
  }
  ConvOperand image(const ConvOperand& all, const Copy& copy, bool& copied, std::int64_t pixels, std::int64_t channels,
                    std::int64_t padded_channels) {
    const ConvOperand from = from_element(all, first_ * pixels * channels);
    if (!copy.data) return from;
    if (!std::exchange(copied, true))
      pad(s_, copy, {images_ * pixels, padded_channels}, from, {images_ * pixels, channels});
    return copy;
  }
  /// y or dx with its previous contents if the product adds to them.
  void* output(const Conv& c, const Copy& copy, std::int64_t pixels, std::int64_t channels,
               std::int64_t padded_channels) {
    const Copy out = result(c);
    if (!copy.data) return out.data;
    if (c.accumulate) pad(s_, copy, {images_ * pixels, padded_channels}, out, {images_ * pixels, channels});
    return copy.data;
  }
  Conv product(const Conv& c) {
    const auto& g = c.shape;
    const std::int64_t in = g.h * g.w, out = g.oh * g.ow;
    Conv p = c;
    p.shape.n = images_, p.shape.i = to_.inputs, p.shape.o = to_.outputs;
    if (c.pass != ConvPass::data) p.x = image(c.x, x_, x_copied_, in, g.i, to_.inputs);
    if (c.pass != ConvPass::forward) p.dy = image(c.dy, dy_, dy_copied_, out, g.o, to_.outputs);
    if (c.pass != ConvPass::weight) p.w = shared_.w;
    if (shared_.bias.data) p.bias = shared_.bias;
    if (c.pass == ConvPass::forward) p.out = output(c, y_, out, g.o, to_.outputs);
    if (c.pass == ConvPass::data) p.out = output(c, dx_, in, g.i, to_.inputs);
    if (c.pass == ConvPass::weight) p.out = shared_.dw.data, p.out_dtype = DType::f32, p.accumulate = first_ > 0;
    return p;
  }

  Stream& s_;
  std::span<const Conv> passes_;
  Channels to_;
  const Shared& shared_;
  std::int64_t first_, images_;
  Copy x_, dx_, y_, dy_;
  bool x_copied_ = false, dy_copied_ = false;
};

Shared shared_copies(Stream& s, std::span<const Conv> passes, const Channels& to, Room& room) {
  Shared shared;
  const Copies copies(passes, to);
  for (const Conv& c : passes) {
    const auto& g = c.shape;
    const std::int64_t weights = to.outputs * g.taps() * to.inputs;
    Rows filters{g.o * g.taps(), g.i}, padded_filters{to.outputs * g.taps(), to.inputs};
    if (to.inputs == g.i) filters = {1, g.o * g.k()}, padded_filters = {1, weights};  // zeros only after the last one
    if (c.pass == ConvPass::weight) {
      shared.dw = {room.take(weights * 4), DType::f32};
      continue;
    }
    shared.w = {room.take(weights * dtype_bytes(c.compute)), c.compute};
    pad(s, shared.w, padded_filters, c.w, filters);
    if (!copies.bias) continue;
    shared.bias = {room.take(to.outputs * 4), c.bias.dtype};
    pad(s, shared.bias, {1, to.outputs}, c.bias, {1, g.o});
  }
  return shared;
}

}  // namespace

Channels whole_channels(const Conv& c) {
  const std::int64_t chunk = 16 / dtype_bytes(c.compute);
  return {whole(c.shape.i, chunk), whole(c.shape.o, chunk)};
}

bool can_pad(const Conv& c, const Channels& to) {
  const auto& g = c.shape;
  const Copies copies({&c, 1}, to);
  const bool other = to.inputs != g.i || to.outputs != g.o,
             types = c.out_dtype == c.compute || !(copies.y || copies.dx);
  return other && types && g.pixels() > 0 && Batches({&c, 1}, to).images > 0;
}

bool pad_channels(Stream& s, std::span<const Conv> passes, const Channels& to,
                  const std::function<bool(std::span<const Conv>)>& products) {
  const Batches batches(passes, to);
  if (batches.images == 0) return false;  // together they need more than separately
  Room room(workspace(s, batches.level));
  const Shared shared = shared_copies(s, passes, to, room);
  const std::int64_t n = passes[0].shape.n;
  for (std::int64_t first = 0; first < n; first += batches.images) {
    Batch batch(s, passes, to, shared, room, first, std::min(batches.images, n - first));
    if (!products(batch.operands())) {
      require(first == 0, "conv2d", "a kernel served {} of {} images only", first, n);
      return false;
    }
    batch.results();
  }
  for (const Conv& c : passes)
    if (c.pass == ConvPass::weight)
      remove_padding(s, {c.out, c.out_dtype}, {c.shape.o * c.shape.taps(), c.shape.i}, shared.dw, to.inputs,
                     c.accumulate);
  return true;
}

}  // namespace hpcdl::cuda

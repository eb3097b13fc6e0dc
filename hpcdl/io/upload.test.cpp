#include "hpcdl/io/upload.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

TEST(upload, refuses_invalid_uploads) {
  OwnedTensor a({{8}, DType::f32}), b({{9}, DType::f32});
  Upload upload;
  EXPECT_THROW(upload.add(a.tensor, b.tensor), Error);
  EXPECT_THROW(upload.add(a.tensor, a.tensor), Error) << "the tensor is not on a GPU";
  EXPECT_EQ(upload.bytes(), 0);
}

/// Tensors of all sizes around that of a piece, at odd addresses as in files, by any number of threads.
TEST(gpu_upload, every_byte_arrives) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(5);
  const Stream s(Device::cuda(0), pool);
  const std::int64_t sizes[] = {
      0, 1, 77, Upload::kPiece - 1, Upload::kPiece, Upload::kPiece + 1, 9 * Upload::kPiece + 5};
  std::int64_t total = 0;
  for (auto n : sizes) total += n;
  const Buffer source(total + 64), back(total);
  for (std::int64_t i = 0; i < source.bytes(); ++i) source.data()[i] = static_cast<std::byte>(i * 2654435761u >> 7);
  for (int threads : {1, 3, 5, 0}) {
    const Buffer there(total, s.device());
    Upload upload;
    std::int64_t at = 0;
    for (auto n : sizes) {
      upload.add(Tensor(there.data() + at, {{n}, DType::u8}, s.device()),
                 View(source.data() + 3 + at, {{n}, DType::u8}));
      at += n;
    }
    EXPECT_EQ(upload.bytes(), total);
    upload.run(s, threads);
    copy(s, Tensor(back.data(), {{total}, DType::u8}), View(there.data(), {{total}, DType::u8}, s.device()));
    EXPECT_EQ(std::memcmp(back.data(), source.data() + 3, static_cast<std::size_t>(total)), 0) << threads << " threads";
  }
}

}  // namespace
}  // namespace hpcdl::io

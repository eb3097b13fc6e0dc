// Tensors in files, read in chunks: compared, converted, and written as the first checkpoint of a run.

#include "hpcdl/io/stored_tensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include <cmath>
#include <limits>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/checkpoint_for_tests.h"
#include "hpcdl/io/copy_stored.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/first_checkpoint.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/stored_checkpoint.h"
#include "hpcdl/io/tensor_difference.h"

namespace hpcdl::io {
namespace {

/// A tensor in memory that is read like one in a file.
template <class T> struct Held {
  OwnedTensor memory;
  StoredTensor stored;

  explicit Held(const std::vector<T>& values, Shape shape = {})
      : memory({shape.rank() ? shape : Shape{std::ssize(values)}, dtype_of<T>}) {
    std::copy(values.begin(), values.end(), memory.tensor.template ptr<T>());
    stored = {"t", memory.tensor.spec(), {{memory.tensor, {}, nullptr}}};
  }
};

TEST(stored_tensors, differences_are_those_of_the_numbers) {
  const Held<float> a({1, -2, 0.5f}), b({1, -2.5f, 0.5f});
  auto d = difference(a.stored, b.stored);
  EXPECT_EQ(d.elements, 1);
  EXPECT_EQ(d.largest, 0.5);
  EXPECT_EQ(d.relative(), 0.2);
  EXPECT_TRUE(d.bits);
  d = difference(a.stored, a.stored);
  EXPECT_TRUE(d.elements == 0 && d.largest == 0 && !d.bits && d.relative() == 0);
  d = difference(a.stored, Held<double>({1, -2, 0.5}).stored);
  EXPECT_TRUE(d.elements == 0 && d.largest == 0 && !d.bits);
  d = difference(Held<float>({0.0f}).stored, Held<float>({-0.0f}).stored);
  EXPECT_TRUE(d.elements == 0 && d.bits);
  d = difference(Held<float>({0.0f}).stored, Held<float>({0.0f}).stored);
  EXPECT_EQ(d.relative(), 0);
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(difference(Held<float>({nan, inf}).stored, Held<float>({nan, inf}).stored).elements, 0);
  for (const float bad : {nan, inf, -inf})
    EXPECT_TRUE(std::isinf(difference(a.stored, Held<float>({1, -2, bad}).stored).largest));
  EXPECT_EQ(difference(Held<std::int64_t>({5, 9}).stored, Held<std::int64_t>({5, 7}).stored).largest, 2);
  EXPECT_EQ(difference(Held<bool>({true}).stored, Held<bool>({false}).stored).elements, 1);
}

TEST(stored_tensors, tensors_of_many_chunks_and_of_none) {
  std::vector<float> values(static_cast<std::size_t>(2 * kChunkElements + 5));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  const Held<float> a(values);
  values.back() += 3;
  const auto d = difference(a.stored, Held<float>(values).stored);
  EXPECT_EQ(d.elements, 1);
  EXPECT_EQ(d.largest, 3);
  const Held<float> none({}, {0, 4});
  EXPECT_EQ(difference(none.stored, none.stored).elements, 0);
}

TEST(stored_tensors, parts_must_cover_the_whole_once) {
  const OwnedTensor half({{2, 3}, DType::f32});
  const auto rows = [](std::int64_t begin) {
    return Part::along({4, 3}, 0, std::vector<Interval>{{begin, begin + 2}});
  };
  StoredTensor t{"t", {}, {}};
  add_part(t, {half.tensor, rows(0)}, "file");
  EXPECT_EQ(t.whole, (Spec{{4, 3}, DType::f32}));
  EXPECT_THROW(check_cover(t, "folder"), Error);
  EXPECT_THROW(add_part(t, {half.tensor, {}}, "file"), Error) << "a part of another shape";
  add_part(t, {half.tensor, rows(2)}, "file");
  EXPECT_NO_THROW(check_cover(t, "folder"));
  add_part(t, {half.tensor, rows(2)}, "file");
  EXPECT_THROW(check_cover(t, "folder"), Error);
}

TEST(stored_tensors, a_copy_has_another_type_and_only_numbers_that_fit) {
  const TempFolder tmp;
  const Held<float> a({1, 2, 3, 4, 5, 6}, {2, 3});
  {
    TensorFolderWriter writer(tmp / "m", {{"same", a.stored.whole}, {"bf16", {{2, 3}, DType::bf16}}});
    const auto crc = copy_stored(a.stored, writer, "same", DType::f32);
    EXPECT_EQ(crc, crc32c(std::as_bytes(std::span(a.memory.tensor.ptr<float>(), 6))));
    copy_stored(a.stored, writer, "bf16", DType::bf16);
    writer.commit();
  }
  const auto files = TensorFolder::open(tmp / "m");
  const auto stored = stored_tensors(files);
  ASSERT_EQ(stored.size(), 2u);
  for (const auto& t : stored) EXPECT_EQ(difference(a.stored, t).elements, 0) << t.name;

  TensorFolderWriter writer(tmp / "n", {{"t", {{1}, DType::f16}}});
  EXPECT_THROW(copy_stored(Held<float>({1e30f}).stored, writer, "t", DType::f16), Error);
  EXPECT_THROW(copy_stored(Held<std::int64_t>({1}).stored, writer, "t", DType::f16), Error);
}

TEST(stored_tensors, a_tensor_is_written_to_its_end_and_not_beyond) {
  const TempFolder tmp;
  const Held<float> a({1, 2, 3});
  SafeTensorsWriter writer(tmp / "x.safetensors", {{"t", {{4}, DType::f32}}, {"empty", {{0}, DType::f32}}});
  writer.append("t", a.memory.tensor);
  EXPECT_THROW(writer.commit(), Error);
  EXPECT_THROW(writer.append("t", a.memory.tensor), Error);
  EXPECT_THROW(writer.write("t", Held<float>({1, 2, 3, 4}).memory.tensor), Error);
  EXPECT_THROW(writer.append("t", Held<double>({1}).memory.tensor), Error);
  writer.append("t", Held<float>({4}).memory.tensor);
  writer.commit();
  EXPECT_EQ(SafeTensors::open(tmp / "x.safetensors").at("t").ptr<float>()[3], 4);
}

/// Tensors of more than one chunk, of which files and readers hold other parts.
TEST(stored_tensors, a_part_is_read_a_chunk_at_a_time) {
  const Shape whole{1301, 1021};
  const OwnedTensor all({whole, DType::i32});
  for (std::int64_t i = 0; i < whole.size(); ++i) all.tensor.ptr<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  const Interval columns[] = {{3, 400}, {900, 1000}}, rows[] = {{0, 700}}, others[] = {{700, 1301}};
  const auto taken = [&](const Part& part) {
    OwnedTensor t({part.local, DType::i32});
    copy_common(t.tensor, part, all.tensor, {});
    return t;
  };
  const auto top = Part::along(whole, 0, rows), bottom = Part::along(whole, 0, others);
  const OwnedTensor first = taken(top), second = taken(bottom);
  const StoredTensor stored{"t", all.tensor.spec(), {{first.tensor, top, nullptr}, {second.tensor, bottom, nullptr}}};
  for (const auto& part : {Part::along(whole, 1, columns), Part::flat(whole, {5, whole.size() - 7}),
                           Part::flat(whole, {1020, 3000}, Part::along(whole, 1, columns)), top}) {
    const OwnedTensor want = taken(part), got({part.local, DType::i32});
    read_part(stored, got.tensor, part);
    EXPECT_EQ(std::memcmp(got.tensor.data(), want.tensor.data(), static_cast<std::size_t>(want.tensor.bytes())), 0);
  }
  const OwnedTensor got({whole, DType::i32});
  read_part(stored, got.tensor, {});
  EXPECT_EQ(std::memcmp(got.tensor.data(), all.tensor.data(), static_cast<std::size_t>(all.tensor.bytes())), 0);
}

TEST(stored_tensors, a_first_checkpoint_loads_with_moments_of_zeros) {
  const TempFolder tmp;
  const ToyRun from(5);
  std::vector<NamedSpec> specs;
  for (const auto& t : from.model()) specs.push_back({t.name, t.tensor.spec()});
  Checkpoints checkpoints(tmp / "c");
  const auto path = checkpoints.save(0, [&](const fs::path& folder, std::int64_t serial) {
    const auto write = [&](TensorFolderWriter& writer) {
      std::map<std::string, std::uint32_t> checksums;
      for (const auto& t : from.model())
        checksums[t.name] =
            copy_stored({t.name, t.tensor.spec(), {{t.tensor, {}, nullptr}}}, writer, t.name, t.tensor.dtype());
      return checksums;
    };
    TrainState state;
    state.seed = 3;
    write_first_checkpoint(folder, state, serial, specs, write, from.content());
  });
  EXPECT_EQ(verify_checkpoint(path).state.seed, 3u);
  ToyRun to(9);
  load_checkpoint(path, to.model(), to.optimizer());
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(std::memcmp(to.model()[i].tensor.data(), from.model()[i].tensor.data(),
                          static_cast<std::size_t>(to.model()[i].tensor.bytes())),
              0);
  const Tensor moment = to.optimizer()[0].tensor;
  for (std::int64_t i = 0; i < moment.size(); ++i) ASSERT_EQ(moment.ptr<float>()[i], 0);
}

}  // namespace
}  // namespace hpcdl::io

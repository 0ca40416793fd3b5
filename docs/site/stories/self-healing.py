# SPDX-License-Identifier: GPL-2.0-only

# Two small files. Metadata are there twice on the one device: the profile DUP.
fs = bm.create("256M", nodesize, seed=1, behaviour=kernel)
for name in ("one", "two"):
    fs.create(name)
    fs.write(name, 0, f"this is {name}\n".encode())
fs.save(disk)

# A byte in the first copy of the leaf rots. Its checksum tells, and the other copy is read.
with bm.open(disk) as image:
    first, second = image.image.copies(image.subvolume("").tree.bytenr)
with disk.open("r+b") as device:
    device.seek(first + nodesize - 1)
    device.write(b"X")

# A check of all copies finds it.
(problem,) = bm.check(disk)
print(problem)

# The right bytes are those of the other copy. They are written over the rotted ones.
healed = bm.heal(disk)
healed.write_copy(str(disk), disk.with_suffix(".healed"))
disk.with_suffix(".healed").replace(disk)

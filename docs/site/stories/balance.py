# SPDX-License-Identifier: GPL-2.0-only

# Eight files of 1 MiB.
fs = bm.create("512M", nodesize, seed=1, behaviour=kernel)
for number in range(8):
    fs.create(f"file{number}")
    fs.write(f"file{number}", 0, bytes(range(256)) * (1 << 12))
fs.save(disk)

# Half of them are deleted: their chunk has holes, and stays.
for number in range(0, 8, 2):
    fs.unlink(f"file{number}")
fs.save(disk)

# A balance of data writes what is in use to new chunks, and lets each old one go. Addresses of
# the files change; their contents do not.
fs.balance(data="")
fs.save(disk)

# A balance of metadata moves tree blocks in the same way.
fs.balance(metadata="")
fs.save(disk)

from tests.machine.world import World
import sys
def run(text):
  w=World()
  for l in text.splitlines():
    try: print(">",l); print(w.run(l))
    except Exception as e:
        import traceback; print("EXC",type(e),e)
  return w
w=run("""topic t 4
join m1 nonce=
join m1 nonce= drawn=d1
hear A join topics=t
settle
join m2 nonce= drawn=d2
rejoin m1-d1
expire m1-d1
hear m1-d1 join topics=t
hear A bye
show""")
print(w.state.groups['g'].pending)

"""Common English words in lower case, for the games with words: only data."""

from __future__ import annotations

__all__ = ["FIVE_LETTER_WORDS", "WORDS"]

_FIVE_LETTER_WORDS_TEXT = """
abbey abide about above abuse acorn actor acute admit adobe adopt adult after again agent agree ahead aisle alarm
album alert alien alike alive alley allow alone along aloud alter amaze amber amend among ample amuse angel anger
angle angry ankle annex apart apple apply april apron arena argue arise armor aroma array arrow arson ashen aside
aspen asset atlas atone attic audio audit avoid await awake award aware awful bacon badge badly bagel baggy baker
balmy banal banjo barge baron basic basil basin batch bathe baton beach beads beard beast beech began begin begun
being belch belle belly below bench berry bevel bingo birch birth bison black blade blame blank blast blaze bleak
bleed blend bless blimp blind blink bliss bloat block blond blood bloom blown blues bluff blunt blurt blush board
boast bongo bonus boost booth bored borne bound boxer brace braid brain brake brand brass brave brawl brawn bread
break breed briar brick bride brief brine bring brink brisk broad broke brood brook broom broth brown brush brute
budge buggy bugle build built bulge bulky bully bumpy bunch bunny burnt burst buyer cabin cable cacti cadet camel
canal candy canoe caper cargo carol carry carve caste catch cater cause cease cedar chain chair chalk champ chaos
charm chart chase chasm cheap cheat check cheek cheer chess chest chick chief child chili chill chime chimp china
chirp choir choke chord chore chose chuck chunk churn cider cigar cinch civic civil claim clamp clash clasp class
clean clear clerk click cliff climb cling clock close cloth cloud clove clown cluck clump coach coast cobra cocoa
colon color comet comic comma coral couch cough could count court coven cover covet crack craft cramp crane crank
crash crate crave crawl crazy cream creed creek creep crepe crest crick crime crisp croak crook cross crowd crown
crude cruel crumb crush crust crypt cubic cubit cupid curly curry curse curve cycle cynic daddy daily dairy daisy
dance dandy datum deals dealt debit debug debut decay decor decoy deity delay delta demon denim dense depth derby
deter detox devil diary digit diner dingo dingy diode dirge dirty disco ditch ditto diver dizzy dodge dogma doing
dolly donor doubt dough dowel downy dowry dozen draft drain drama drank drape drawl drawn dread dream dress dried
drift drill drink drive drone drown drums dryer dryly dummy dusty duvet dwarf dwell eager eagle early earth easel
eaten eater ebony eerie eight eject elate elbow elder elect elite elope elude embed ember emcee empty enact endow
enemy enjoy ensue enter entry envoy epoch equal equip erase error essay ether ethic evade event every evict evoke
exact exalt exams excel exert exile exist expel extol extra exude fable facet faint fairy faith false fancy farce
fatal fault fauna favor feast feign felon fence feral ferry fetch fever fewer fiber field fiend fiery fifth fifty
fight filth final finch first fixed flair flaky flame flank flare flash flask flaws fleck fleet flesh flick flier
fling flint flirt float flock flood floor flora floss flour fluff fluid fluke flung flush flute foamy focus foggy
foray force forge forth forty forum found foyer frail frame frank fraud freak freed fresh friar fried frisk frock
front frost frown froze fruit fudge fully fungi funny furry fussy gamma gamut gaudy gauge gavel gecko geese genre
ghost giant giddy girth given giver gland glare glass glaze gleam glide glint gloat globe gloom glory gloss glove
gnome going golem goose gouge gourd grace grade graft grain grand grant grape graph grasp grass grate grave gravy
graze great greed green greet grief grill grime grimy grind gripe groan groom grope gross group grout grove growl
grown gruel gruff grunt guard guava guess guest guide guild guilt guise gulch gully gusto gusty habit hairy handy
happy hardy harpy harsh haste hasty hatch haunt haven hazel heart heath heave heavy hedge hefty heist helix hello
hence herbs heron hilly hinge hippo hitch hoard hobby hoist homer honey honor horde horse hotel hound house hover
howdy human humid humor humus hurry husky hydra hyena icily icing ideal idiom idler igloo image imply inbox index
inept inert infer inlet inner input ionic irony issue itchy ivory jaunt jazzy jeans jelly jetty jewel joint joist
joker jolly joust judge juice juicy jumbo jumpy karma kayak kebab ketch khaki kiosk kitty knack knave knead kneed
kneel knelt knife knock knoll known koala label labor laden ladle lance lapse large larva laser lasso latch later
laugh layer leafy leaky leapt learn lease leash least leave ledge leech legal lemon lemur level lever libel liege
light lilac limbo limit linen lingo lithe liver livid llama loamy loath lobby local lodge lofty logic loose lorry
lotus lousy lower loyal lucid lucky lunar lunch lurch lusty lyric macaw macho mafia magic magma magna major maker
mambo mange mango mania manic manor maple march marsh mason match matte mauve maxim mayor mealy meaty medal media
melee melon mercy merge merit merry metal meter midst might mimic mince miner minor minty minus miser mixed mixer
mocha modal model modem mogul moist molar moldy money month moody moose moral morph mossy motel motif motor motto
mound mount mourn mouse mousy mouth mover movie muddy mulch mummy munch mural murky mushy music musky musty nacho
nadir naive nanny nasal nasty naval navel needy nerdy nerve never newer newly niece nifty night ninja ninth noble
noise noisy noose north notch noted novel nudge nurse nutty nylon nymph oaken oasis occur ocean oddly offal offer
often olive omega onion onset opera optic orbit order organ other otter ought ounce outer ovary ovoid owner oxide
ozone paddy pagan paint palsy panda panel panic pants papal paper parka parry parse party pasta paste pasty patch
patio patty pause paved payee payer peace peach peaky pearl pecan pedal penal penny perch peril perky pesky petal
petty phase phone photo piano picky piece piety piggy pilot pinch pinky piper pique pitch pivot pixel pixie pizza
place plaid plain plait plane plank plant plate plaza plead pluck plumb plume plump plunk plush poach point poise
poker polar polka polyp poppy porch posse pouch pound power prank prawn preen press price prick pride prime print
prior prism privy prize probe prone prong proof prose proud prove prowl proxy prune psalm pudgy puffy pulpy pulse
punch pupil puppy purge purse pygmy quack quail quake quart quasi queen quell query quest queue quick quiet quill
quilt quirk quite quota quote rabid radar radii radio rainy raise rally ramen ranch range rapid raven rayon razor
reach react ready realm rebel rebut recap recur reedy refer regal rehab reign relax relay remit renew repay repel
reply reset resin retro revel rhino rhyme rider ridge rifle right rigid rinse ripen risen risky rival river rivet
roach roast robin robot rocky rodeo rogue roman roomy roost rotor rouge rough round route rover rowdy royal ruddy
rugby ruler rumor rural rusty saber sadly saggy saint salad salon salsa salty salvo sandy sappy sassy satin satyr
sauce saucy sauna savor savvy scald scale scalp scamp scant scare scarf scary scene scent scoff scold scone scoop
scope score scorn scour scout scowl scram scrap screw scrub sedan seedy segue seize sense sepia serum serve setup
seven shack shade shady shaft shake shall shame shape shard share shark sharp shave shawl sheen sheep sheer sheet
shelf shell shift shine shiny shirk shirt shoal shock shoot shore short shout shove shown showy shrew shrub shrug
shuck shunt sieve sight sigma silky silly since sinew singe siren sixth sixty skate skein skier skiff skill skimp
skirt skulk skull slack slain slang slant slash slate sleek sleep sleet slice slick slide slime sling slink slope
slosh sloth slump slung slurp slush smack small smart smear smell smelt smile smirk smite smith smock smoke snack
snail snake snare snarl sneak sneer snide sniff snipe snoop snore snort snout snowy snuck snuff soapy sober soggy
solar solid solve sonar sonic sorry sound south space spade spare spark spasm spawn speak spear speck speed spell
spend spice spicy spiel spike spill spine spire spite splat split spoil spoke spook spool spoon spore sport spout
spray spree sprig spunk spurt squad squat squid stack staff stage staid stain stair stake stale stalk stall stamp
stand stare stark start stash state stead steak steal steam steed steel steep steer stein stems stern stick stiff
still stilt sting stink stint stock stoic stoke stole stomp stone stood stool stoop store stork storm story stout
stove strap straw stray strew strip strum strut stuck study stuff stump stung stunt style suave sugar suite sulky
sully sunny super surge surly sushi swamp swarm swear sweat sweep sweet swell swept swift swing swirl swoon swoop
sword syrup tabby table taboo tacit tacky taffy taint taken tally talon tango tapir tardy tarot tasty taunt tawny
teach tease tempo tenor tenth tepid terms terra terse thank theft theme there thick thief thigh thing think third
thorn those three threw throb throw thumb thyme tiara tibia tidal tiger tight tilde timer timid tipsy titan title
toast today toddy token tonal tonic tooth topaz topic torch torso total totem touch tough towel tower toxic toxin
trace track tract trade trail train trait tramp trash trawl tread treat trend triad trial tribe trick trite troll
troop trope trout trove truce truck truly trump trunk trust truth tubby tulip tulle tuned tunic turbo tutor twang
tweak tweed twice twine twirl twist udder ulcer ultra uncle under unfit unify union unite unity unlit until unzip
upper upset urban usage usher usual usurp utter vague valid valor value valve vapid vapor vault vaunt vegan venal
venom venue verge verse vicar video vigor villa vinyl viola viper viral virus visit vista vital vivid vixen vocal
vodka vogue voice voila voter vouch vowel vying wafer wagon waist waive waltz warty waste watch water weary weave
wedge weedy weigh weird welch whack whale wharf wheat wheel where which whiff while whine whirl whisk white whole
whose widen width wield wince winch windy wiper wispy witch witty woken woman wordy world worry worse worst worth
would wound woven wrack wrath wreck wring wrist write wrong wrote yacht yearn yeast yield yodel young youth yummy
zebra zesty zonal
"""
FIVE_LETTER_WORDS: tuple[str, ...] = tuple(_FIVE_LETTER_WORDS_TEXT.split())
"""Common words of five letters, in alphabetical order."""

_OTHER_WORDS_TEXT = """
able absolute accident account acid activity address aircraft airport alcohol alphabet aluminum ambition analysis
anchor ancient animal announce answer antique anxiety appetite approach aquarium archive arctic argument article
artist athlete audience aunt autumn baby back backpack bacteria bakery balance balanced ball ballet balloon bamboo
banana band bank bargain barn baseball basket bath bathroom battery battle bear beaver bedroom beetle bell benefit
bicycle biology bird birthday bitter blackout blanket blue boat body bone book border bottle bowl branch breath breeze
bridge bright bronze brother bubble bucket building bush business butter button cabinet cake calendar calm camera camp
campaign candle canyon capacity captain caption caravan carbon card cardinal careful carnival carpet carrier carrot
cart cartoon castle category cattle cave ceiling cement central century ceramic ceremony certain chamber champion
channel chapter charity cheese cheetah chemical cherry chestnut chicken children chimney chipmunk chorus cinnamon
circle citizen city civilian classic clay climate climbing clothes clothing clover club cluster coal coat coconut
coffee coin cold collapse college colorful column combat combine comfort command company complete computer concept
concert conclude concrete conflict congress contact content context continue contract contrast control convince cook
copper corn corner cottage cotton council country county courage cousin cradle crayon creature credit criminal
crossing crucible crystal cube cucumber culture curtain cushion custom customer customs cyclone damage danger dark
daughter dawn daylight deadline decade decimal decision decorate deer default degree delicate delivery deposit
describe desert designer desk diameter diamond digital dinner dinosaur diploma diplomat director disaster discount
discover disease dish display distance district diverse doctor document dollar dolphins donkey door doorbell doughnut
dove down dragon dramatic drawer drawing drum duck duration dust dynamic dynamite earrings east eastern echo economic
economy edition editor effect elastic election electric element elephant elevator eleven emotion emperor emphasis
empire employee endanger energy engine engineer enormous entrance envelope equation escape estate estimate evening
evidence example exchange exercise exhibit expense explore express external fabric factory familiar family famous farm
fast father fearless feather feedback fern festival fiction figure film filter finance finger fire fish fishing
fitness flag flamingo flower folklore football forecast forehead foreign forest fork formula fortune forward fossil
fountain fraction fragment freedom freight frequent friction fridge friend friendly frog frozen function future galaxy
gallery garage garden garlic gate general generate genuine geometry gift gigantic ginger giraffe girl glacier glider
global glue goat gold golden gorilla graduate grammar graphics grateful gravel gravity greenery grocery ground
guardian guidance guitar habitat hair hammer hammock hand handmade harbor hardware harmony harp harvest hawk heading
headline health healthy helmet helpful heritage highway hill history hole holiday hollow home homework hook horizon
horn horrible hospital hostage housing humanity hundred hunter husband hydrogen identify identity imagine industry
inherit innocent insect insight instance instant interest interior internal internet interval invasion involved iron
island isolated jacket jaguar jewelry jigsaw journal journey judgment jump junction jungle justice kangaroo kettle
keyboard kindness king kitchen kite kitten knee knitting knowing ladder lake lamp landlord language laughter laundry
lavender lawyer leader leaf leather lecture legend lemonade leopard lesson letter liberty library likewise lion liquid
literary lizard loaf lobster location locker lonesome lumber machine magazine magnet magnetic maid mail majority
manager mankind mansion mantle marble margin market master meadow measure mechanic medical medicine medieval medium
membrane memory mental mention merchant message method middle midnight military milk million mind mineral minister
minority minute miracle mirror missile mission mitten mixture moderate modern molecule moment momentum monitor monkey
monster moon morning mosquito mother motion mountain movement multiple muscle museum mushroom musical mustache mystery
nail napkin national native natural nature neck needle neighbor nest network northern nose notebook nothing nowhere
nuclear number numerous object obstacle occasion octopus offering office official operator opinion opposite orange
orchid ordinary organic organize original orphan outdoor outside outsider oven overcome overlook oxygen package
painter painting palace palm pamphlet parade parallel parasite parent park parking parrot particle partner passage
passion passport path patience patient pattern payment peaceful pear pebble pedestal pencil penguin people pepper
perfect perfume person personal petition physical pickle picture pilgrim pillow pioneer pipeline pirate planet plasma
plastic platform pleasant plum plumber plumbing pocket poetry police politics polygon pond popcorn popular porridge
portion position positive possible potato pottery poverty powder powerful practice precious prepare presence present
preserve pressure prevent previous primary prince princess printer prison prisoner privacy probable problem process
produce producer product profile program progress project promise property proposal prospect protein protest protocol
province public publish puddle pumpkin purchase purpose puzzle pyramid quantity quarter question rabbit railroad rain
rainbow random reaction receipt recipe reckless record recover recovery reflect regional register regular relation
relative remember reminder repeated replica reptile republic request rescue research reserve resident resource
response restore revenue ribbon ring road rock rocket romantic roof rope rose roughly routine saddle salmon salt
sample sand sandals sandwich sapphire satisfy sausage scarce scenario schedule school science scissors scorpion
seashell season secret section seed segment sentence separate sequence serious service several shadow shelter ship
shoe shoulder shovel sidewalk signal silence silk silver similar singer sister skeleton sketch slippery snow snowball
soap soccer society socket software soldier solution song soup southern spacious speaker special specimen spider
spinach spirit spring sprinkle square squeeze squirrel stable stadium standard star starfish station statue storage
strange stranger strategy stream street strength struggle student studio subject success suggest suitcase summer
sunlight sunrise sunset sunshine superior supper support supreme surface surgeon surgery surprise surround survival
survive swan swimming switch symbol sympathy symphony symptom syndrome system tail tailor talent tapestry target
teacher teaspoon teenager telegram temple tennis tent terminal theater theory thinking thirty thought thousand thread
throne thunder ticket timber time tissue tobacco together tomato tomorrow tongue tonight tortoise traffic trainer
training transfer trapeze travel traveler treasure treaty tree triangle tropical trouble trumpet tunnel turkey
turnover turtle twelve ultimate umbrella uniform universe unknown upgrade upstairs utility vacation vaccine validity
valley valuable vampire variety vase vehicle velvet vendor venture version vertical vessel veteran vicinity victory
village vinegar vintage violent violet virtual visible vision visitor vitamin volatile volcano volume walking walnut
warrior wave weakness wealth wealthy weapon weather website wedding weekend welcome west western whatever whisper
whistle wildlife wind windmill window wing winter wireless wisdom without witness wolf wonder wood woodland wool
workshop wrapper writing yard yellow yogurt yourself zero zipper zoology
"""
_OTHER_WORDS: tuple[str, ...] = tuple(_OTHER_WORDS_TEXT.split())
"""Common words of four, six, seven and eight letters."""

WORDS: tuple[str, ...] = (*FIVE_LETTER_WORDS, *_OTHER_WORDS)
"""All words: of four to eight letters, none twice."""
